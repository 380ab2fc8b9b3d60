"""What to build: profile -> plan -> Dockerfile, build context and run settings; pure, same input same bytes."""
