"""What a method is made of, one file a part."""
