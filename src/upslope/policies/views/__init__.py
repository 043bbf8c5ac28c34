"""Model views: what of a language model is trained, other than its last layer's logits as they are."""
