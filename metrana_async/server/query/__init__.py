"""Reading: pure resolution and aggregation, and the service around them."""
