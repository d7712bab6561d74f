"""Record-level noise inside the sum, against noise at every silo, a trusted curator, and no privacy."""
