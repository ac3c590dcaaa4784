"""Desktop slots.

`service` is the whole: `slots` (what there is), `serving` (who gets which), `standby` (what is ready early), `lifecycle` (what
happens to one slot), `prepare` (how a desktop comes up), `background` (what runs meanwhile).
"""
