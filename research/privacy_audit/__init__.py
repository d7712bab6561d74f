"""Whether the product's noise is what its accounting says: lower bounds on epsilon, beside the claims."""
