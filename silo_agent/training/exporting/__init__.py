"""A trained model as a folder that works without a federation."""
