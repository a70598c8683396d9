"""Two engines' answers to one request, compared; and what many such comparisons come to."""
