"""Methods that learn from datasets, alone or before they act."""
