"""Records what earlier runs did and how well they went: for the planner, recall(), and people."""
