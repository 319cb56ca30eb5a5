"""What a terminal shows and asks: colours, progress, prompts, completion."""
