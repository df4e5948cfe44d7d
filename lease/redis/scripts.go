package redis

import goredis "github.com/redis/go-redis/v9"

// The scripts. KEYS[1] is the lease's key and ARGV[1] how the value of the
// token's own lease begins. None reads more of a value than a lease has (512 is
// above maxValue): another program's may be large.
const (
	// ARGV[2] the value, ARGV[3] its life in milliseconds. Answers 1 when the
	// lease is the token's, else what is there and its remaining life.
	acquireScript = `
if redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3]) then
  return 1
end
local value = redis.call('GETRANGE', KEYS[1], 0, 511)
if string.sub(value, 1, #ARGV[1]) == ARGV[1] then
  return 1
end
return {value, redis.call('PTTL', KEYS[1])}`

	// ARGV[2] the life in milliseconds. Answers whether the lease is held.
	renewScript = `
local value = redis.call('GETRANGE', KEYS[1], 0, 511)
if string.sub(value, 1, #ARGV[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0`

	releaseScript = `
local value = redis.call('GETRANGE', KEYS[1], 0, 511)
if string.sub(value, 1, #ARGV[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`

	// ARGV[2] the life of the mark in milliseconds. The fifth byte of the value
	// becomes the mark's. A Redis that has no memory for a mark still frees the
	// lease, and tells.
	completeScript = `
local value = redis.call('GETRANGE', KEYS[1], 0, 511)
if string.sub(value, 1, #ARGV[1]) == ARGV[1] then
  local set = redis.pcall('SET', KEYS[1], string.sub(value, 1, 4) .. 'C' .. string.sub(value, 6), 'PX', ARGV[2])
  if set.err then
    redis.call('DEL', KEYS[1])
    return set
  end
  return 1
end
return 0`
)

// scripts knows the scripts by their hashes. A server that does not have one
// says so, and is sent the whole.
type scripts struct {
	acquire, renew, release, complete *goredis.Script
}

func newScripts() scripts {
	return scripts{
		acquire:  goredis.NewScript(acquireScript),
		renew:    goredis.NewScript(renewScript),
		release:  goredis.NewScript(releaseScript),
		complete: goredis.NewScript(completeScript),
	}
}
