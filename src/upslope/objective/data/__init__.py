"""What else enters the step? The parts of each paper stand in a module of their own."""
