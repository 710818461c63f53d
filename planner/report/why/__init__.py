"""Why a plan is as it is: what binds it, what others would take, and what would have to change."""
