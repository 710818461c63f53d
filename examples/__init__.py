"""Jobs that use Penstock as a person would."""
