"""One candidate: how it is priced, ordered, timed, held against memory, and made a plan."""
