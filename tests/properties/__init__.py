"""What must hold for any input, tried on inputs that chance makes."""
