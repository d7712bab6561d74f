"""How a round trains where a part of the model is the silo's own, one file a way."""
