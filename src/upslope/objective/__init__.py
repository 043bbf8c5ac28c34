"""The core: pure tensor code on columns ``[N, T]``. It knows no model, no tokenizer and no environment."""
