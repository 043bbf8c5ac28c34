"""Our engine behind OpenAI's protocol: a result served to whoever speaks it, and rollouts for runs elsewhere."""
