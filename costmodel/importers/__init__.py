"""What was measured elsewhere, read into our own files. Text and JSON only; nothing read can run."""
