"""What `pointsman up` and the tests run against: a real Triton from a wheel, and sample models for it."""
