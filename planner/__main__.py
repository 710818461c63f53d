"""`python -m planner` is the command ``penstock``, for a checkout whose scripts folder is not on the path."""

from planner.commands import main

raise SystemExit(main())
