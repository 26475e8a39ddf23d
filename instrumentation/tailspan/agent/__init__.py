"""The helper process beside a worker: reads its rings, joins records into requests and steps, exports spans."""
