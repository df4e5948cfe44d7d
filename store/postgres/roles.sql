-- The two roles of unavez. Run it once for each cluster, as a role that may
-- create roles; running it again changes nothing.
--
--   unavez_migrate  owns the schema; unavez migrate runs as a member of it
--   unavez_app      runs: reads and writes what is stored, and cannot change it otherwise
--
-- Give them to your login roles:
--
--   GRANT unavez_migrate TO deployer;
--   GRANT unavez_app TO shop;
--
-- and let unavez_migrate create its schema in the application's database:
--
--   GRANT CREATE ON DATABASE shop TO unavez_migrate;
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'unavez_migrate') THEN
        CREATE ROLE unavez_migrate NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'unavez_app') THEN
        CREATE ROLE unavez_app NOLOGIN;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- another session was faster
END $$;
