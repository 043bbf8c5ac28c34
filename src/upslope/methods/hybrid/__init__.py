"""Methods that learn from what others wrote, alone or beside what they sample themselves."""
