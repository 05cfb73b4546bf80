"""The commands `ffrecord` and `ffrecord-pack`: they parse, call the library, and print."""
