"""Why the accelerator waits: experiments on a job, and a report."""
