"""Engines: whatever continues prompts, behind one interface (`upslope.types.Engine`)."""
