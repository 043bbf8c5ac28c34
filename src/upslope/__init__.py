"""upslope: policy optimization as a composition of small parts."""
