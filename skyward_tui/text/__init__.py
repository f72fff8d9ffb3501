"""Values as words and table cells."""
