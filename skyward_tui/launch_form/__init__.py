"""The launch form's model, without widgets."""
