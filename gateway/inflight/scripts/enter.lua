-- Join an identical entry; else note that one was started here, or let it wait where the bounds allow.
-- ARGV: id digest mode(start|queue) lane key reads patience_ms form type wait body bound
--       seconds_per_read capacity most free_reads free_decisions weight small_passes
local id, digest, mode, lane, key, reads = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local patience = tonumber(ARGV[9])

local function join(other)
  redis.call('SADD', waiters_key(other), me)
  if redis.call('HGET', entry_key(other), 'state') == 'queued' then
    redis.call('HSET', entry_key(other), 'deadline', string.format('%.0f', now + patience))
    redis.call('ZADD', P .. 'deadlines', now + patience, other)
  end
  return {'joined', other, waiting()}
end

local other = redis.call('GET', P .. 'digest:' .. digest)
if other == id then return {mode == 'start' and 'started' or 'queued', id, waiting()} end
if other then
  if alive(other) then return join(other) end
  drop(other)
end

-- Seconds until the entry would start, by the same arithmetic as in the memory of one process.
local function expected(counts)
  local per_read, capacity, most = tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])
  local free_reads, free_decisions = tonumber(ARGV[18]), tonumber(ARGV[19])
  local weight, passes = tonumber(ARGV[20]), tonumber(ARGV[21])
  local own = redis.call('LLEN', line_key(lane, key))
  local keys = redis.call('HLEN', P .. 'turns:' .. lane) + (own == 0 and 1 or 0)
  local small = lane == 'small'
  local count, lane_reads = counts[small and 1 or 3], counts[small and 2 or 4]
  local others, other_reads = counts[small and 3 or 1], counts[small and 4 or 2]
  local ahead = math.min(count, (own + 1) * keys - 1)
  local passing = math.min(others, small and math.floor(ahead / passes) or passes * (ahead + 1))
  local before = ahead * (count > 0 and lane_reads / count or 0) + passing * (others > 0 and other_reads / others or 0)
  local rounds = math.max((before + weight - free_reads) / capacity, (ahead + passing + 1 - free_decisions) / most, 0)
  return per_read * capacity * rounds
end

local counts = waiting()
if mode == 'queue' then
  if counts[1] + counts[3] >= tonumber(ARGV[14]) then return {'full', id, counts} end
  local wait = expected(counts)
  if wait * 1000 > patience then return {'late', string.format('%.3f', wait), counts} end
end
redis.call('HSET', entry_key(id), 'digest', digest, 'lane', lane, 'key', key, 'reads', reads, 'tries', 0,
  'deadline', string.format('%.0f', now + patience), 'patience', patience)
redis.call('SADD', waiters_key(id), me)
redis.call('SET', P .. 'digest:' .. digest, id, 'PX', ttl)
if mode == 'start' then
  redis.call('HSET', entry_key(id), 'state', 'running', 'worker', me)
else
  redis.call('HSET', entry_key(id), 'state', 'queued', 'form', ARGV[10], 'type', ARGV[11], 'wait', ARGV[12],
    'body', ARGV[13])
  line_up(id)
end
keep(entry_key(id))
keep(waiters_key(id))
return {mode == 'start' and 'started' or 'queued', id, waiting()}
