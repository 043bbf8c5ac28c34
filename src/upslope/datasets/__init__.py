"""Data made on the spot: who acts, by which recipe, and what it is worth (`upslope.datasets.making.make_data`)."""
