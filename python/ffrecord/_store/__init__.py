"""Record files elsewhere: pushed to a store, evicted to it, published at a daemon."""
