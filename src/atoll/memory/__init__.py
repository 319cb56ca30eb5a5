"""What earlier runs did and how well it went: for the planner, for recall(), and for people."""
