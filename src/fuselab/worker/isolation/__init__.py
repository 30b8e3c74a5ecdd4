"""`--isolate`: implementations in processes of their own, timed and checked from outside."""
