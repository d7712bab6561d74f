"""The losses and sums of Chorale's own tasks; strategies/tasks/ declares what they sum."""
