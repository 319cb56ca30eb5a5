"""What happens to text on its way to and from a model."""
