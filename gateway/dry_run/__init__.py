"""Rules tried out before anybody is served by them: requests as people tell them, tests, traffic that was recorded."""
