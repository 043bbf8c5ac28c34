"""Forward and backward passes of language models: `plain` leaves them to `transformers`, the rest is our own decoder."""
