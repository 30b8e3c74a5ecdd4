"""What every operator needs and no operator owns."""
