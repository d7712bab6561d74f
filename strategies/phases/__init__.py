"""The phases that methods share: enrollment, class presence, training, evaluation."""
