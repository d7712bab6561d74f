"""What a private job promises and costs."""
