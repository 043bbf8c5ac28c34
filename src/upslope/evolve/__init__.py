"""Parts that write text: prompts with help in them, further turns, problems made from others."""
