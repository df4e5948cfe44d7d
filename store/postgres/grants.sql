-- What the role that runs may do. unavez migrate applies it after the
-- migrations, where the role exists.
GRANT USAGE ON SCHEMA unavez TO unavez_app;
GRANT SELECT ON unavez.migration, unavez.setting, unavez.ledger, unavez.slot, unavez.outcome TO unavez_app;
GRANT UPDATE ON unavez.ledger, unavez.slot TO unavez_app;
GRANT SELECT, INSERT, DELETE, TRUNCATE ON
    unavez.outcome_0, unavez.outcome_1, unavez.outcome_2, unavez.outcome_3,
    unavez.tombstone_0, unavez.tombstone_1, unavez.tombstone_2 TO unavez_app;
GRANT UPDATE (forgets, short) ON unavez.tombstone_0, unavez.tombstone_1, unavez.tombstone_2 TO unavez_app;
GRANT SELECT, INSERT, DELETE ON unavez.outcome_table TO unavez_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON unavez.attempt, unavez.step TO unavez_app;
GRANT SELECT, INSERT, DELETE ON unavez.transition TO unavez_app;
GRANT SELECT ON unavez.queue, unavez.memory TO unavez_app;
GRANT USAGE ON SEQUENCE unavez.queue_sequence TO unavez_app;
GRANT SELECT, INSERT, DELETE, TRUNCATE ON unavez.queue_0, unavez.queue_1, unavez.queue_2, unavez.queue_3 TO unavez_app;
GRANT UPDATE (payload, erased) ON unavez.queue_0, unavez.queue_1, unavez.queue_2, unavez.queue_3 TO unavez_app;
GRANT SELECT, UPDATE ON unavez.queue_slot TO unavez_app;
GRANT SELECT, INSERT, DELETE ON unavez.delivery, unavez.quarantine TO unavez_app;
GRANT UPDATE (payload, erased) ON unavez.quarantine TO unavez_app;
GRANT SELECT, UPDATE ON unavez.lane TO unavez_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON unavez.worker, unavez.blocked TO unavez_app;
GRANT SELECT, INSERT, UPDATE ON unavez.version, unavez.position TO unavez_app;
GRANT SELECT, INSERT ON unavez.action TO unavez_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA unavez TO unavez_app;
