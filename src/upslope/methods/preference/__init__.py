"""Methods that learn which of several answers is preferred."""
