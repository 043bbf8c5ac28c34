"""Small worlds with exact answers, found as ``gym:upslope/NAME-v0``: tables to solve, and formulas.

Left to the methods that will need them: a reservoir with hydro power, the density of traffic on a ring, parking a bicycle.
"""
