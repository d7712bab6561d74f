"""The phases that every method has, whatever its parts are."""
