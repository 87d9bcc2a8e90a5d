"""Reports: each is one function of a `Run` (or of what the compiler says), as text or as JSON."""
