"""Methods that choose what is trained on: which tasks, how many answers to each, how long they may be."""
