"""Jobs from submission to end.

job_manager: every job, submitted, steered and watched. job_runner: one job, its retry after a fault of this
machine, and what its silos send. sequence: which phase comes next. phase_runner: one phase, the retry of its
attempts, what is durable when. attempt_runner: one session, the messages of its stages. deadlines: how long a
stage waits for a silo. aggregate: the masked sum.
"""
