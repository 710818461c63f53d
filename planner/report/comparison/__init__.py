"""Plans side by side, and what differs, has moved or was measured."""
