"""Commands about core dumps and addresses."""
